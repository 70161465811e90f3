"""What MPS and mpsd do on this machine's GPU, measured: `mpsd bench`.

One rule: it measures and judges nothing (`bench.rules.bench_claims` does), and changes no setting of a card.
"""

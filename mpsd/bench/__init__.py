"""`mpsd bench`: measures what MPS and mpsd do on this machine's GPU; no setting of a card is
changed."""

"""What must hold whatever the bytes are, and a fuzzer that looks for bytes of which it does not."""

"""What a candidate is run on: cases, their inputs, and the references of each."""

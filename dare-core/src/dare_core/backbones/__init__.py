"""What several model families share: packing, attention, output head, weights, text, peft."""

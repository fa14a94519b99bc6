"""The commands of ``solgym``, one module each. They talk to people; everything else is done elsewhere."""

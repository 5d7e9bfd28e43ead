"""Where state lives: one contract, several stores."""

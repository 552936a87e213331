"""What a person calls: commands, and the tools behind them."""

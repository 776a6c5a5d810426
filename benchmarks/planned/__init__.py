"""What a GPU does, beside the planner's estimate."""

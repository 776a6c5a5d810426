"""What a GPU does, compared with the planner's estimate."""

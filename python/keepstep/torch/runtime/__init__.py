"""The training function's handle `Run`, and the loop that enters the function, is interrupted and enters it again."""

"""What ``run.prepare`` returns: a loader, optimizers and a scaler for loops that keepstep did not write."""

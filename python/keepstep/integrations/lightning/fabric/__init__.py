"""``Fabric(strategy="keepstep")``: Lightning Fabric's own loop, whose ``optimizer.step()`` is the commit."""

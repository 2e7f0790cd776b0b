"""Communication (`allreduce`, `transport`, `rendezvous`) and the coordinator's decisions (`membership`)."""

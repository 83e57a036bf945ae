"""What a scheduler and a job agree on: the job, its sources, its result and its exit code. Both import it, so it needs no Arrow."""

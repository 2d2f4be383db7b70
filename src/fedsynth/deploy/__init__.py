"""Real sites and servers: enrolment, transports (Flower, or signed files), each machine, progress and backups."""

"""Steps as timelines: orders of passes, their simulation, and what they hold in memory."""

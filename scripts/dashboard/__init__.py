"""The parts of scripts/dashboard.py: history, recording, comparison and page."""

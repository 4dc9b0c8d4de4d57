"""The link between two hosts: its route, its fabric, its measured ceiling."""

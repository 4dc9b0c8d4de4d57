"""The only home of what is particular to one operating system."""

"""One module for each group of commands; ``exits`` holds the exit statuses."""

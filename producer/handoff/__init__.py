"""The handoff wire, version 2: frames, the session's keys and transcript, the sending and the receiving end."""

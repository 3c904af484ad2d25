"""The slowdown of a training over the save interval, beside the paper of smdebug."""

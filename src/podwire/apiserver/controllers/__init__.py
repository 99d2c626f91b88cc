"""What works on the objects inside the server, so that they become what they say."""

"""Tables of our private mixture beside other private learners."""

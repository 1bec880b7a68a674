"""The demo: a year of real flights in a minute."""

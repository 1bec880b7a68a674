"""Scorewatch: a monitoring agent for deployed classifiers."""

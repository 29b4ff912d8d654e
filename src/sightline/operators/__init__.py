"""Operators: functions from a method to a method, such as aggregation over layers or contrast of classes."""

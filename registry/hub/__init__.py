"""Publishing on the Hub: composed folders, and experts with their statistics.

What is uploaded appears in one commit or not at all, and is compared with what was to arrive.
"""

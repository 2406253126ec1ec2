"""A client scans the model that it was sent before it trains: does a server's manipulation make its update easy to read?"""

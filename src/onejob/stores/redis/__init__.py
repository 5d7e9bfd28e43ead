"""The store in Redis or Valkey: records in hashes, order in sorted sets, atomic steps by one script."""

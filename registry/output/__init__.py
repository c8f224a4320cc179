"""Where a composition is written: a folder, or a prefix of a bucket; and composed folders read back from a bucket."""

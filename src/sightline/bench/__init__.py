"""From a plan to rows: units of work, the store they end in, the engines that do them, and the table made of it."""

"""Methods that limit how much information a layer passes on."""

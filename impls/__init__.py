"""Operations written several ways, and the backends that run them."""

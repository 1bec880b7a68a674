"""What changes the world. Every action is journalled before it is carried out."""

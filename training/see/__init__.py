"""Training of the encoder and projector that let the chat model read scenes."""

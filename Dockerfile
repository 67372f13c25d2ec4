# syntax=docker/dockerfile:1

# docker build -t oxidize .
# docker run --rm -it -v "$PWD/models:/models:ro" oxidize run /models/model.gguf "Hello"

FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
# The target directory is a cache mount, so the binary is copied out of it in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked -p oxidize-cli && \
    install -D target/dist/oxidize /out/oxidize

FROM debian:bookworm-slim
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin oxidize
COPY --from=build /out/oxidize /usr/local/bin/oxidize
USER oxidize
WORKDIR /home/oxidize
ENTRYPOINT ["oxidize"]
CMD ["--help"]

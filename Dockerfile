# sightline on a processor:
#
#   docker build -t sightline .
#   docker run --rm -v "$PWD:/work" sightline explain dog.jpg --model bundled/shapes-vit
#   docker run --rm -p 8000:8000 sightline app --host 0.0.0.0 --token random
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 UV_TORCH_BACKEND=cpu
WORKDIR /opt/sightline
COPY pyproject.toml constraints.txt hatch_build.py README.md LICENSE ./
COPY src src
COPY docs/references.bib docs/references.bib
COPY plans plans
RUN pip install uv && uv pip install --system --constraint constraints.txt ".[app,bench,report]"

RUN useradd --create-home sightline
USER sightline
WORKDIR /work
ENTRYPOINT ["sightline"]
CMD ["--help"]

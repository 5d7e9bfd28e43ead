# onejob with all extras. An image of your own adds your code: see examples/deploy/Dockerfile.
#
#     docker build -t onejob .
#     docker run --rm onejob demo

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/onejob
RUN /opt/onejob/bin/pip install --no-cache-dir -c constraints.txt ".[all]"

FROM python:3.13-slim
COPY --from=build /opt/onejob /opt/onejob
ENV PATH=/opt/onejob/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
ENTRYPOINT ["onejob"]
CMD ["--help"]

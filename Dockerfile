# The hub as an image. `docker build .` makes the slim one; `docker build --target stdio .` adds Node.js and uv, for servers
# that are started by `npx` or `uvx`. Everything from Python is pinned with hashes in requirements/.

ARG PYTHON=3.13
ARG NODE=22

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY requirements/image.txt requirements/
RUN python -m venv /opt/isthmus
RUN /opt/isthmus/bin/python -m pip install --quiet --no-cache-dir --no-deps --require-hashes -r requirements/image.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /opt/isthmus/bin/python -m pip install --quiet --no-cache-dir --no-deps --no-build-isolation .

FROM python:${PYTHON}-slim AS base
COPY --from=build /opt/isthmus /opt/isthmus
# The state (keys, tasks, audit log) is below the home folder: keep it in a volume.
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/isthmus isthmus
ENV PATH=/opt/isthmus/bin:$PATH HOME=/var/lib/isthmus
# Put isthmus.toml or mcp.json here.
WORKDIR /etc/isthmus
VOLUME /var/lib/isthmus
EXPOSE 8765
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=3s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8765/livez', timeout=2)"]
ENTRYPOINT ["isthmus"]
CMD ["serve", "--host", "0.0.0.0"]

FROM node:${NODE}-slim AS node

FROM base AS stdio
COPY --from=node /usr/local/bin/node /usr/local/bin/
COPY --from=node /usr/local/lib/node_modules /usr/local/lib/node_modules
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
COPY requirements/stdio.txt /tmp/
RUN python -m pip install --quiet --no-cache-dir --no-deps --require-hashes -r /tmp/stdio.txt
USER isthmus

FROM base AS slim
USER isthmus

# The service in a small image; docs/deploying.md says how to build and run it.

# A tag can be moved to another image, a digest cannot. docs/deploying.md says how to renew it.
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm@sha256:8a7e7cc04fd3e2bd787f7f24e22d5d119aa590d429b50c95dfe12b3abe52f48b

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
ENV UV_NO_CACHE=1
COPY requirements-build.lock requirements-image.lock ./
# Only what has the digest that the locks name is installed, into an environment that is copied whole.
RUN python -m pip install --no-cache-dir --require-hashes -r requirements-build.lock \
 && python -m venv --without-pip /service \
 && uv pip install --python /service/bin/python --require-hashes -r requirements-image.lock
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src src
RUN uv build --wheel --no-build-isolation --python "$(command -v python)" --out-dir /wheels . \
 && uv pip install --python /service/bin/python --no-deps /wheels/*.whl

FROM ${PYTHON_IMAGE}
# The user (10001) has no home and no shell, and owns nothing but /state, where a store on disk may keep its files.
RUN useradd --system --no-create-home --uid 10001 --shell /usr/sbin/nologin tealagents \
 && install -d -o tealagents /state
COPY --from=build /service /service
ENV PATH=/service/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TA_SERVICE_CONFIG=/config/config.yaml
USER 10001
WORKDIR /state
VOLUME /state
EXPOSE 8000
# Seconds for a drain (limits.drain_seconds, 20 by default) and what comes after it: docker stop -t 35.
STOPSIGNAL SIGTERM
# The root lists what is served, without a token and without asking the store.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", \
  "from urllib.request import *; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/', timeout=4)"]
# On 0.0.0.0 the service starts only with an auth provider: set TA_ENTRA_TENANT_ID and TA_ENTRA_AUDIENCE, or
# TA_AUTH=mock, which accepts any bearer token as the user id.
ENTRYPOINT ["tealagents"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]

# One image for the API, the worker and the migrations; docker-compose.yml runs them.
FROM python:3.12-slim AS build
WORKDIR /app
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements.lock ./
RUN pip install --require-hashes --no-deps -r requirements.lock
COPY pyproject.toml README.md settings.py worker.py ./
COPY governance governance
COPY models models
COPY workflows workflows
COPY activities activities
COPY api api
RUN pip install --no-deps --no-index --no-build-isolation --editable .

FROM python:3.12-slim
# Our top-level names are ordinary words: this puts them before anything else of the same name.
ENV PATH=/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --create-home --uid 10001 sluicegate
COPY --from=build /venv /venv
COPY --from=build /app /app
USER sluicegate
WORKDIR /app
ENV SLUICEGATE_HOST=0.0.0.0 SLUICEGATE_PORT=8080 SLUICEGATE_DATA_DIR=/home/sluicegate/data
EXPOSE 8080
ENTRYPOINT ["sluicegate"]
CMD ["serve"]

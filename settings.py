"""Every setting of Sluicegate, read from the environment by the entry points and by nothing else."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1024 * 1024


class Settings(BaseSettings):
    """Settings with their defaults; each is the environment variable SLUICEGATE_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_", extra="ignore", frozen=True)

    data_dir: Path = Field(default_factory=lambda: Path.home() / ".sluicegate")
    """Where the embedded database, the embedded Temporal server's file and the vault key live."""
    database_url: str | None = None
    """`sqlite:///file` or `postgresql://…`; without it, an SQLite file in `data_dir`."""
    database_pool_size: int = Field(default=10, ge=1, le=100)
    database_busy_timeout_ms: int = Field(default=5_000, ge=0)

    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    temporal_ui_url: str | None = None
    """The Temporal UI's address, for links; without it none are shown."""
    task_queue: str = "sluicegate"

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    admin_token: SecretStr | None = None
    """The control plane's token, with the prefix `sga_`; without it, one is made and kept in `data_dir`."""
    vault_key: SecretStr | None = None
    """32 bytes in URL-safe base64; without it, one is made and kept in `data_dir`."""
    key_prefix: str = Field(default="sgk_", pattern=r"^[a-z]{2,8}[_-]$")
    """What every data-plane secret begins with."""

    mcp_allowed_origins: frozenset[str] = frozenset()
    """Origins of web pages that may use `/mcp`, such as `["https://agents.example"]`; programs need none."""

    auth_failures_per_minute: int = Field(default=120, ge=1)
    """Requests without a valid credential that one address may send to one API process in a minute."""
    console_session_s: int = Field(default=8 * 3600, ge=60, le=30 * 24 * 3600)
    """How long a login to the console holds."""

    require_start_grant: bool = False
    """Whether a round that is started through Temporal needs a grant from `POST /v1/rounds/grants`."""
    start_grant_s: int = Field(default=300, ge=1, le=24 * 3600)
    """How long after it was minted a start grant lets its round begin."""

    body_max_bytes: int = Field(default=8 * MIB, ge=1024)
    """A longer request body is refused with 413."""
    result_inline_max_bytes: int = Field(default=1 * MIB, ge=1024)
    """A longer tool message is cut, with a marker and a link to the whole result."""
    result_hard_max_bytes: int = Field(default=32 * MIB, ge=1024)
    """A longer result is not stored: the call fails as result_too_large."""
    round_wait_max_s: float = Field(default=300.0, gt=0)
    """How long a request may wait for its round before it is answered 202."""

    heartbeat_timeout_s: float = Field(default=8.0, gt=0)
    """A worker silent for this long is taken for dead."""
    heartbeat_throttle_s: float = Field(default=0.3, gt=0)
    """How often at most a worker sends heartbeats on; a cancel arrives with an answer to one."""
    task_timeout_s: float = Field(default=4.0, ge=1.0)
    """How long a workflow task may take before another worker gets it."""
    sticky_timeout_s: float = Field(default=1.5, gt=0)
    """How long a workflow task waits for the worker that has it cached."""
    drain_s: float = Field(default=20.0, ge=0)
    """How long a stopping process lets running calls finish."""
    max_concurrent_calls: int = Field(default=100, ge=1)
    """Tool calls that one worker runs at once."""

    def resolved_database_url(self) -> str:
        """Return the database's URL, falling back to the file in the data folder."""
        return self.database_url or f"sqlite:///{self.data_dir / 'sluicegate.db'}"

    @property
    def drain(self) -> timedelta:
        """How long a stopping process lets running calls finish."""
        return timedelta(seconds=self.drain_s)

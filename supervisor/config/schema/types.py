"""What a key's value may be: types that read themselves from the file's text."""

from pathlib import Path
from typing import Annotated

from supervisor.config.schema import values
from supervisor.config.schema.secret import Secret
from supervisor.config.schema.section import OPTIONAL_PATH, PATH, from_text

Boolean = Annotated[bool, from_text(values.boolean)]
Bytes = Annotated[int, from_text(values.size_bytes)]
Count = Annotated[int, from_text(lambda text: values.whole(text, 0))]
Positive = Annotated[int, from_text(lambda text: values.whole(text, 1))]
Mode = Annotated[int, from_text(values.octal)]
Priority = Annotated[int, from_text(lambda text: values.whole(text, -1_000_000))]
Limit = Annotated[int, from_text(lambda text: values.whole(text, 0, values.MAX_LIMIT))]
CountLimit = Annotated[int, from_text(lambda text: values.limit(text, is_size=False))]
PositiveBytes = Annotated[int, from_text(values.positive_size)]
SizeLimit = Annotated[int, from_text(lambda text: values.limit(text, is_size=True))]
Seconds = Annotated[float, from_text(values.seconds)]
Cores = Annotated[float, from_text(values.cores)]
Timeout = Annotated[float, from_text(values.timeout)]
Variables = Annotated[dict[str, str], from_text(values.environment)]
User = Annotated[str, from_text(values.user)]
FilePath = Annotated[Path, PATH]
LogPath = Annotated[Path | None, OPTIONAL_PATH]
Password = Annotated[Secret, from_text(Secret)]

LOG_MAXBYTES = 50 << 20
LOG_BACKUPS = 10

"""What a key's value may be: types that read themselves from the file's text."""

from pathlib import Path
from typing import Annotated

from supervisor.config.schema import values
from supervisor.config.schema.secret import Secret
from supervisor.config.schema.section import OPTIONAL_PATH, PATH, parsed_by

Boolean = Annotated[bool, parsed_by(values.boolean)]
Bytes = Annotated[int, parsed_by(values.size_bytes)]
Count = Annotated[int, parsed_by(lambda text: values.whole(text, 0))]
Positive = Annotated[int, parsed_by(lambda text: values.whole(text, 1))]
Mode = Annotated[int, parsed_by(values.octal)]
Priority = Annotated[int, parsed_by(lambda text: values.whole(text, -1_000_000))]
Limit = Annotated[int, parsed_by(lambda text: values.whole(text, 0, values.MAX_LIMIT))]
CountLimit = Annotated[int, parsed_by(lambda text: values.limit(text, is_size=False))]
PositiveBytes = Annotated[int, parsed_by(values.positive_size)]
SizeLimit = Annotated[int, parsed_by(lambda text: values.limit(text, is_size=True))]
Seconds = Annotated[float, parsed_by(values.seconds)]
Cores = Annotated[float, parsed_by(values.cores)]
Timeout = Annotated[float, parsed_by(values.timeout)]
Variables = Annotated[dict[str, str], parsed_by(values.environment)]
User = Annotated[str, parsed_by(values.user)]
FilePath = Annotated[Path, PATH]
LogPath = Annotated[Path | None, OPTIONAL_PATH]
Password = Annotated[Secret, parsed_by(Secret)]

LOG_MAXBYTES = 50 << 20
LOG_BACKUPS = 10

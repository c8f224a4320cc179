from .export import GgufExport as GgufExport
from .export import GgufFile as GgufFile
from .export import export_gguf as export_gguf

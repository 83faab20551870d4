"""The public names, each taken from the module that declares it; `squilla_files.__init__` hands them on.

This is their one list. The form ``X as X`` tells type checkers that a name is exported.
"""

# ruff: noqa: PLC0414

from squilla_files.compaction import CompactionConfig as CompactionConfig
from squilla_files.compaction import CompactionRequest as CompactionRequest
from squilla_files.compaction import CompactionResult as CompactionResult
from squilla_files.compaction import Summarizer as Summarizer
from squilla_files.compaction import compact_context as compact_context
from squilla_files.conversations import TranscriptPage as TranscriptPage
from squilla_files.errors import CorruptFileError as CorruptFileError
from squilla_files.errors import CorruptManifestError as CorruptManifestError
from squilla_files.errors import CorruptRecordError as CorruptRecordError
from squilla_files.errors import InvalidCursorError as InvalidCursorError
from squilla_files.errors import InvalidDeviceError as InvalidDeviceError
from squilla_files.errors import InvalidKeyError as InvalidKeyError
from squilla_files.errors import LockTimeoutError as LockTimeoutError
from squilla_files.errors import LogReplacedError as LogReplacedError
from squilla_files.errors import MessageConflictError as MessageConflictError
from squilla_files.errors import MessageNotFoundError as MessageNotFoundError
from squilla_files.errors import SessionExistsError as SessionExistsError
from squilla_files.errors import SessionNotFoundError as SessionNotFoundError
from squilla_files.errors import SquillaFilesError as SquillaFilesError
from squilla_files.errors import StaleEpochError as StaleEpochError
from squilla_files.errors import StalePreimageError as StalePreimageError
from squilla_files.errors import StoreClosedError as StoreClosedError
from squilla_files.errors import UnsafePathError as UnsafePathError
from squilla_files.errors import UnstorableTypeError as UnstorableTypeError
from squilla_files.errors import UnstorableValueError as UnstorableValueError
from squilla_files.errors import UnsupportedFormatError as UnsupportedFormatError
from squilla_files.errors import WrongLoopError as WrongLoopError
from squilla_files.events import Appended as Appended
from squilla_files.events import Compacted as Compacted
from squilla_files.events import ConflictFound as ConflictFound
from squilla_files.events import ContextChanged as ContextChanged
from squilla_files.events import Created as Created
from squilla_files.events import DamageFound as DamageFound
from squilla_files.events import Deleted as Deleted
from squilla_files.events import Event as Event
from squilla_files.events import Gap as Gap
from squilla_files.events import Pending as Pending
from squilla_files.events import Removed as Removed
from squilla_files.events import Reset as Reset
from squilla_files.events import Updated as Updated
from squilla_files.findings import DeviceStatus as DeviceStatus
from squilla_files.findings import Finding as Finding
from squilla_files.findings import Missing as Missing
from squilla_files.findings import Report as Report
from squilla_files.findings import SyncStatus as SyncStatus
from squilla_files.manager import SessionManager as SessionManager
from squilla_files.models import ChatType as ChatType
from squilla_files.models import InputProvenanceKind as InputProvenanceKind
from squilla_files.models import QueueMode as QueueMode
from squilla_files.models import SendPolicy as SendPolicy
from squilla_files.models import SessionContextState as SessionContextState
from squilla_files.models import SessionIntent as SessionIntent
from squilla_files.models import SessionNode as SessionNode
from squilla_files.models import SessionStatus as SessionStatus
from squilla_files.models import SessionSummary as SessionSummary
from squilla_files.models import TranscriptEntry as TranscriptEntry
from squilla_files.storage import SessionStorage as SessionStorage

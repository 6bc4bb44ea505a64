"""The bundled handler of `$export`: FHIR NDJSON files in, Bulk Data files and a manifest out."""

from hastetrio.bulk._directory import directory_name as directory_name
from hastetrio.bulk._handler import BulkExport as BulkExport
from hastetrio.bulk._handler import sample_directory as sample_directory
from hastetrio.bulk._parameters import ExportParameters as ExportParameters
from hastetrio.bulk._parameters import parse_parameters as parse_parameters
from hastetrio.bulk._types import RESOURCE_TYPES as RESOURCE_TYPES

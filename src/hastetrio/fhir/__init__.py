"""The HTTP face: the FHIR Asynchronous Request Pattern on Starlette.

    _serve -> _app -> _kick_off, _status, _files, _metadata -> the storage protocol

Every answer but a result is an OperationOutcome. The package needs the extra `http`.
"""

from hastetrio._http_config import HttpConfig as HttpConfig
from hastetrio.fhir._app import make_app as make_app
from hastetrio.fhir._callers import Authenticator as Authenticator
from hastetrio.fhir._callers import AuthenticatorUnavailable as AuthenticatorUnavailable
from hastetrio.fhir._callers import InvalidToken as InvalidToken
from hastetrio.fhir._face import Face as Face
from hastetrio.fhir._face import check_operations as check_operations
from hastetrio.fhir._jwks import JwksFile as JwksFile
from hastetrio.fhir._jwks_url import JwksUrl as JwksUrl
from hastetrio.fhir._jwt import JwtAuthenticator as JwtAuthenticator

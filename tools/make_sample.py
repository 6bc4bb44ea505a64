"""Makes the NDJSON sample that ships in `hastetrio.bulk`: 60 made-up patients.

Run it as `python tools/make_sample.py [DIRECTORY]`. The same seed gives the same bytes on every
Python, because only `Random.random()` is used, whose sequence is promised not to change
(https://docs.python.org/3/library/random.html#notes-on-reproducibility). Names are invented, and
every resource carries the security label HTEST (test health data).
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

SEED = 20260131
PATIENTS = 60
SAMPLE = Path(__file__).parents[1] / "src" / "hastetrio" / "bulk" / "sample"

T = TypeVar("T")
Resource = dict[str, Any]

LOINC = "http://loinc.org"
SNOMED = "http://snomed.info/sct"
RXNORM = "http://www.nlm.nih.gov/research/umls/rxnorm"
CVX = "http://hl7.org/fhir/sid/cvx"
UCUM = "http://unitsofmeasure.org"
TERMINOLOGY = "http://terminology.hl7.org/CodeSystem"

FAMILIES = (
    "Abelson", "Brandt", "Castellan", "Dufresne", "Eklund", "Farrow", "Grünwald", "Hallam",
    "Ibáñez", "Jansson", "Kowal", "Lindqvist", "Marlowe", "Nakano", "Okafor", "Petrov",
    "Quintero", "Rousseau", "Sørensen", "Tanaka", "Ueda", "Vasić", "Wójcik", "Zeller",
)  # fmt: skip
GIVEN = {
    "female": ("Alma", "Bea", "Clara", "Dina", "Elif", "Freya", "Gita", "Hana", "Lucía", "Noor"),
    "male": ("Anton", "Bilal", "Casper", "Diego", "Emil", "Farid", "Goran", "Hugo", "José", "Nils"),
}
CITIES = ("Ashby", "Brook Hollow", "Cedar Point", "Dunmore", "Elmswick")
WARDS = ("Riverside Clinic", "Hillcrest Hospital", "Northgate Practice")

# Code, words, unit as written, UCUM unit, mean, spread, digits.
VITALS = (
    ("8867-4", "Heart rate", "beats/minute", "/min", 74, 12, 0),
    ("8480-6", "Systolic blood pressure", "mmHg", "mm[Hg]", 124, 15, 0),
    ("8462-4", "Diastolic blood pressure", "mmHg", "mm[Hg]", 78, 9, 0),
    ("8310-5", "Body temperature", "degrees C", "Cel", 36.8, 0.4, 1),
    ("29463-7", "Body weight", "kg", "kg", 74, 14, 1),
    ("8302-2", "Body height", "cm", "cm", 170, 10, 0),
)
# A diagnosis and what is ordered for it.
TREATMENTS = (
    (("38341003", "Hypertensive disorder"), ("314076", "lisinopril 10 MG Oral Tablet")),
    (("38341003", "Hypertensive disorder"), ("197361", "amlodipine 5 MG Oral Tablet")),
    (
        ("44054006", "Type 2 diabetes mellitus"),
        ("860975", "24 HR metformin hydrochloride 500 MG Extended Release Oral Tablet"),
    ),
    (("36971009", "Sinusitis"), ("308182", "amoxicillin 250 MG Oral Capsule")),
    (("233604007", "Pneumonia"), ("308182", "amoxicillin 250 MG Oral Capsule")),
)
VACCINES = (
    ("140", "influenza, seasonal, injectable, preservative free"),
    ("115", "Tdap"),
    ("03", "MMR"),
)
ZONES = (UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5)))
FIRST_DAY = datetime(2024, 1, 1, 8, 0, tzinfo=UTC)


class Sample:
    """Draws the resources, patient by patient, and keeps them by type."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # made-up data, not a secret
        self.resources: dict[str, list[Resource]] = {}

    def make(self, patients: int) -> None:
        """Draw the organizations and practitioners, and `patients` patients with their records."""
        for name in WARDS:
            organization = self._add("Organization", FIRST_DAY, active=True, name=name)
            for _ in range(3):
                self._practitioner(organization)
        for _ in range(patients):
            self._patient()

    def _practitioner(self, organization: Resource) -> None:
        gender = self._pick(("female", "male"))
        self._add(
            "Practitioner",
            FIRST_DAY,
            active=True,
            name=[self._name(gender) | {"prefix": ["Dr."]}],
            gender=gender,
            address=[{"text": organization["name"]}],
        )

    def _patient(self) -> None:
        gender = self._pick(("female", "male"))
        birth = datetime(1940, 1, 1, tzinfo=UTC) + timedelta(days=self._whole(0, 24000))
        patient = self._add(
            "Patient",
            FIRST_DAY + timedelta(days=self._whole(0, 300)),
            active=True,
            name=[self._name(gender)],
            gender=gender,
            birthDate=birth.date().isoformat(),
            address=[{"city": self._pick(CITIES), "country": "XX"}],
            managingOrganization=self._reference(self._pick(self.resources["Organization"])),
        )
        for _ in range(self._whole(1, 3)):
            self._visit(patient)
        for code, words in VACCINES[: self._whole(0, 3)]:
            self._add(
                "Immunization",
                when := FIRST_DAY + timedelta(days=self._whole(0, 700)),
                status="completed",
                vaccineCode=_concept(CVX, code, words),
                patient=self._reference(patient),
                occurrenceDateTime=when.date().isoformat(),
                primarySource=True,
            )

    def _visit(self, patient: Resource) -> None:
        start = FIRST_DAY + timedelta(days=self._whole(300, 730), minutes=self._whole(0, 540))
        doctor = self._reference(self._pick(self.resources["Practitioner"]))
        subject = self._reference(patient)
        encounter = self._add(
            "Encounter",
            start,
            status="finished",
            **{"class": {"system": f"{TERMINOLOGY}/v3-ActCode", "code": "AMB"}},
            subject=subject,
            participant=[{"individual": doctor}],
            period={
                "start": _instant(start),
                "end": _instant(start + timedelta(minutes=self._whole(10, 50))),
            },
            serviceProvider=patient["managingOrganization"],
        )
        visit = self._reference(encounter)
        first = self._whole(0, 3)
        for code, words, unit, ucum, mean, spread, digits in VITALS[first : first + 3]:
            value = round(mean + spread * (self._random.random() * 2 - 1), digits)
            self._add(
                "Observation",
                start,
                status="final",
                category=[_concept(f"{TERMINOLOGY}/observation-category", "vital-signs")],
                code=_concept(LOINC, code, words),
                subject=subject,
                encounter=visit,
                effectiveDateTime=_instant(start),
                valueQuantity={
                    "value": value if digits else int(value),
                    "unit": unit,
                    "system": UCUM,
                    "code": ucum,
                },
            )
        if self._random.random() < 0.6:
            self._diagnosis(subject, visit, doctor, start)

    def _diagnosis(
        self, subject: Resource, visit: Resource, doctor: Resource, start: datetime
    ) -> None:
        diagnosis, medication = self._pick(TREATMENTS)
        condition = self._add(
            "Condition",
            start,
            clinicalStatus=_concept(f"{TERMINOLOGY}/condition-clinical", "active"),
            verificationStatus=_concept(f"{TERMINOLOGY}/condition-ver-status", "confirmed"),
            code=_concept(SNOMED, *diagnosis),
            subject=subject,
            encounter=visit,
            recordedDate=start.date().isoformat(),
        )
        self._add(
            "MedicationRequest",
            start,
            status="active",
            intent="order",
            medicationCodeableConcept=_concept(RXNORM, *medication),
            subject=subject,
            encounter=visit,
            authoredOn=start.date().isoformat(),
            requester=doctor,
            reasonReference=[self._reference(condition)],
        )

    def _add(self, resource_type: str, changed: datetime, **elements: object) -> Resource:
        same_type = self.resources.setdefault(resource_type, [])
        number = len(same_type) + 1
        resource: Resource = {
            "resourceType": resource_type,
            "id": f"{resource_type.lower()}-{number:04d}",
            "meta": {
                "lastUpdated": _instant(changed.astimezone(self._pick(ZONES))),
                "security": [{"system": f"{TERMINOLOGY}/v3-ActReason", "code": "HTEST"}],
            },
            **elements,
        }
        same_type.append(resource)
        return resource

    def _name(self, gender: str) -> Resource:
        return {"family": self._pick(FAMILIES), "given": [self._pick(GIVEN[gender])]}

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def _whole(self, least: int, most: int) -> int:
        return least + int(self._random.random() * (most - least + 1))

    @staticmethod
    def _reference(resource: Resource) -> Resource:
        return {"reference": f"{resource['resourceType']}/{resource['id']}"}


def _concept(system: str, code: str, words: str | None = None) -> Resource:
    coding = {"system": system, "code": code} | ({"display": words} if words else {})
    return {"coding": [coding]}


def _instant(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def write_sample(directory: Path) -> None:
    """Write one file a type into `directory`."""
    sample = Sample(SEED)
    sample.make(PATIENTS)
    directory.mkdir(parents=True, exist_ok=True)
    for resource_type, resources in sample.resources.items():
        lines = [
            json.dumps(resource, ensure_ascii=False, separators=(",", ":")) + "\n"
            for resource in resources
        ]
        (directory / f"{resource_type}.ndjson").write_bytes("".join(lines).encode())


if __name__ == "__main__":
    write_sample(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE)

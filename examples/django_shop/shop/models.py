"""Orders and invoices."""

from django.db import models


class Order(models.Model):
    """What a customer has bought."""

    customer = models.IntegerField()


class Invoice(models.Model):
    """What the job writes."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)

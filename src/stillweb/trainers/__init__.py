"""Adapters for trainers: episodes, agents, batch runner, Ray, verl, and a module for each other framework."""
